from bk_core.cli import main

main()
