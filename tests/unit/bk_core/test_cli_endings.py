"""The ends of ``bk``: its exit statuses, an output that nobody reads, log lines, and what completes its commands."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import bk_core
from bk_core import cli, log_lines
from bk_core.cli import statuses
from tests.sources import text_of

ROOT = Path(bk_core.__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def piped(code: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``bk`` with commands of a few lines, its standard output into a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return run_one(code, writing, **environment)
    finally:
        os.close(writing)


def run_one(code: str, output: int, **environment: str) -> subprocess.CompletedProcess[bytes]:
    program = f"import sys, click\nfrom bk_core import cli\nfrom bk_core.cli import output\n{code}\ncli.main(['one'])"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env={**ENVIRONMENT, **environment}, timeout=60)


COMMAND = "@cli.cli.command('one')\ndef one():\n"
WAYS = {
    "a little, written as it ends": "    click.echo('x', nl=False)",
    "lines": "    for _ in range(99999): print('x')",
    "lines of Click": "    for _ in range(99999): click.echo('x')",
    "a table": "    output.say_table(['a'], [['x']] * 999)",
    "JSON": "    for _ in range(99999): output.say_json({'a': 1})",
    "bytes": "    sys.stdout.buffer.write(b'x' * 9999999)",
}


ON_A_FULL_DISK = {"as it ends": WAYS["a little, written as it ends"], "on the way": WAYS["lines of Click"]}


def some(cases: dict[str, str], *short: str) -> list[Any]:
    """Return the cases for a test, of which all are deep but the short ones."""
    return [pytest.param(case, id=name, marks=() if name in short else pytest.mark.deep) for name, case in cases.items()]


@pytest.mark.parametrize("way", some(WAYS, "lines of Click", "a little, written as it ends"))
def test_an_output_that_nobody_reads_ends_a_command_as_sigpipe_does(way: str) -> None:
    ended = piped(COMMAND + way)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("way", some(ON_A_FULL_DISK, "on the way"))
def test_a_full_disk_is_told_in_one_line(way: str) -> None:
    with open("/dev/full", "wb") as full:
        ended = run_one(COMMAND + way, full.fileno())
    told = b"error: the disk is full (No space left on device): what this command printed last is not written; make room there\n"
    assert (ended.returncode, ended.stderr) == (1, told)


def test_what_a_command_holds_is_let_go_before_it_ends() -> None:
    body = "    try:\n        for _ in range(99999): print('x')\n    finally:\n        print('let go', file=sys.stderr)"
    ended = piped(COMMAND + body)
    assert (ended.returncode, ended.stderr) == (141, b"let go\n")


WAITS = {
    "a sleep": "time.sleep(600)",
    "a lock": "threading.Lock().acquire(); lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "work": "while True: pass",
}


def told_when_unread(program: str) -> bytes:
    """Run a program whose reader goes after the line "here", and return its standard error. It must end as SIGPIPE ends others."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == b"here\n"
            process.stdout.close()
            assert process.wait(30) == 141
            return process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize("wait", some(WAITS, "a lock"))
def test_a_command_that_follows_ends_wherever_it_waits_when_its_reader_has_gone(wait: str) -> None:
    program = f"""
import sys, threading, time
from bk_core import cli
from bk_core.cli.unread import ended_unread
@cli.cli.command("one")
@ended_unread()
def one():
    try:
        print("here", flush=True)
        {wait}
    finally:
        print("let go", file=sys.stderr)
cli.main(["one"])
"""
    assert told_when_unread(program) == b"let go\n"


def test_a_reader_that_goes_while_a_generator_is_thrown_away_ends_the_command_in_silence() -> None:
    """Python drops what is raised in a finalizer, and prints it. The next signal ends the command."""
    program = """
import sys, threading
from bk_core import cli
from bk_core.cli.unread import ended_unread
def runs():
    try:
        yield 1
    finally:
        threading.Event().wait(600)
@cli.cli.command("one")
@ended_unread()
def one():
    one = runs()
    next(one)
    print("here", flush=True)
    del one
    print("thrown away", file=sys.stderr)
    threading.Event().wait(600)
cli.main(["one"])
"""
    assert told_when_unread(program) == b"thrown away\n"


def test_a_signal_that_is_late_ends_the_command_all_the_same() -> None:
    """It comes while the dropped error of the one before is taken note of, and Python drops its error, too."""
    program = """
import os, signal, sys, threading
from bk_core import cli
from bk_core.cli import unread
taken = unread._Watch.on_dropped
def late(self, dropped):
    taken(self, dropped)
    os.kill(os.getpid(), signal.SIGPIPE)
unread._Watch.on_dropped = late
def runs():
    try:
        yield 1
    finally:
        threading.Event().wait(600)
@cli.cli.command("one")
@unread.ended_unread()
def one():
    one = runs()
    next(one)
    print("here", flush=True)
    del one
    print("thrown away", file=sys.stderr)
    threading.Event().wait(600)
cli.main(["one"])
"""
    assert told_when_unread(program) == b"thrown away\n"


def test_an_error_of_another_finalizer_is_told_as_ever() -> None:
    program = """
from bk_core import cli
from bk_core.cli.unread import ended_unread
class Held:
    def __del__(self):
        raise ValueError("of its own")
@cli.cli.command("one")
@ended_unread()
def one():
    Held()
cli.main(["one"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"") and b"ValueError: of its own" in done.stderr


def test_another_pipe_that_nobody_reads_ends_no_command_that_follows() -> None:
    program = """
import os, signal
from bk_core import cli
from bk_core.cli.unread import ended_unread
@cli.cli.command("one")
@ended_unread()
def one():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        os.write(writing, b"x")
    except BrokenPipeError:
        print("its own error")
status = cli.run(["one"])
print(status, signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=ENVIRONMENT, timeout=60)
    assert (done.stdout, done.stderr) == (b"its own error\n0 True\n", b"")


def test_lists_of_commands_say_whole_sentences() -> None:
    """In 80 columns, over several lines if need be."""
    for group in ((), ("ledger",), ("log",)):
        told = CliRunner().invoke(cli.cli, [*group, "--help"], terminal_width=80).output
        listed = told.partition("\nCommands:\n")[2].partition("\n\n")[0]
        assert listed and "..." not in listed and max(map(len, told.splitlines())) <= 80
    assert "add throughput, then both of reads, with percentiles." in " ".join(CliRunner().invoke(cli.cli, ["--help"]).output.split())


def test_both_outputs_may_be_closed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "bk_core.cli", "ledger", "nonsense"]
        assert subprocess.run(command, stdout=writing, stderr=writing, env=ENVIRONMENT, timeout=60).returncode == 141
    finally:
        os.close(writing)


def test_an_output_that_is_closed_is_told_in_one_line_before_anything_is_done() -> None:
    def ended(closed: str, *words: str) -> tuple[int, bytes, bytes]:
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "bk_core.cli", *words]
        done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=60)
        return done.returncode, done.stdout, done.stderr

    told = b"error: standard output is closed, so what bk finds cannot be printed. Nothing was done; > /dev/null throws the output away\n"
    assert ended(">&-", "checkpoint", "cat", "q/metadata", "--uri", "memory://nowhere") == (2, b"", told)
    assert ended(">&- 2>&-", "--version") == (2, b"", b"")
    assert ended("2>&-", "ledger", "nonsense") == (2, b"", b"")
    assert ended("2>&-", "--version") == (0, b"bk, version %b\n" % bk_core.__version__.encode(), b"")


def test_a_question_without_standard_input_is_answered_with_no() -> None:
    program = """
import click, sys
from bk_core import cli
from bk_core.cli import commands
@cli.commands.cli.command("asking")
def asking(): click.confirm("delete everything?", abort=True, err=True); print("deleted")
sys.exit(cli.run(["asking"]))
"""
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"") and b"Traceback" not in done.stderr


def test_other_ends_of_a_process_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def leaving() -> None:
        sys.exit(7)

    monkeypatch.setitem(cli.cli.commands, "leaving", leaving)
    with pytest.raises(SystemExit) as end:
        cli.run(["leaving"])
    assert end.value.code == 7


def test_statuses_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @click.argument("how")
    def ends(how: str) -> None:
        if how == "error":
            raise bk_core.BkError("x")
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "kill":
            with statuses.terminated_in_order():
                os.kill(os.getpid(), signal.SIGTERM)
        if how == "question":
            click.confirm("sure", abort=True, err=True)

    monkeypatch.setitem(cli.cli.commands, "ends", ends)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    found = {how: cli.run(["ends", how]) for how in ("well", "error", "question", "interrupt", "kill")} | {"usage": cli.run(["ends"])}
    assert found == {"well": 0, "error": 1, "question": 1, "interrupt": 130, "kill": 143, "usage": 2}
    assert {*found.values(), statuses.UNREAD} == set(statuses.STATUSES)
    capsys.readouterr()
    assert cli.run(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{status}: {meaning}" in shown for status, meaning in statuses.STATUSES.items())


INTERRUPTED = """
import os, runpy, signal, sys
from importlib.metadata import EntryPoint
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "bk_core.cli.xrays":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["bk", "--version"]
"""


@pytest.mark.parametrize("door", ["script", pytest.param("module", marks=pytest.mark.deep)])
def test_ctrl_c_while_the_commands_are_imported_is_no_traceback(door: str) -> None:
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["bk"]
    script = f"EntryPoint('bk', {target!r}, 'console_scripts').load()()"
    program = INTERRUPTED + (script if door == "script" else "runpy.run_module('bk_core.cli', run_name='__main__')")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, env=ENVIRONMENT, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"interrupted\n")


# --- log lines -----------------------------------------------------------------------------------------------------------


def line_of(code: str, **environment: str) -> str:
    program = (
        f"import logging\n{code}\nlogging.getLogger('bk_spark.read').info('a line')\nlogging.getLogger('bk_core.net').debug('another')"
    )
    return subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, env={**ENVIRONMENT, **environment}, timeout=60, check=True
    ).stderr.decode()


def test_the_variable_shows_the_lines_of_every_part() -> None:
    assert line_of("import bk_core") == ""
    assert line_of("import bk_spark", BOOKKEEPER_LOG_LEVEL="info").endswith(" INFO bk_spark.read: a line\n")
    both = line_of("import bk_core", BOOKKEEPER_LOG_LEVEL="DEBUG").splitlines()
    assert [line.split()[2:] for line in both] == [["INFO", "bk_spark.read:", "a", "line"], ["DEBUG", "bk_core.net:", "another"]]


def test_lines_may_be_json() -> None:
    code = "import bk_core\nlogging.getLogger('bk_core.net').warning('%d facts', 2, extra={'context': {'log': 'l', 'rows': 7}})"
    first, second, *_ = line_of(code, BOOKKEEPER_LOG_LEVEL="INFO", BOOKKEEPER_LOG_FORMAT="json").splitlines()
    told = json.loads(first)
    assert told.pop("ts").endswith("+00:00")
    assert told == {"level": "WARNING", "logger": "bk_core.net", "msg": "2 facts", "context": {"log": "l", "rows": 7}}
    assert json.loads(second)["msg"] == "a line" and "context" not in json.loads(second)


def test_a_program_that_configures_logging_shows_each_line_once() -> None:
    configured = "logging.basicConfig(format='%(levelname)s of mine: %(message)s')"
    for code in (f"{configured}\nimport bk_core", f"import bk_core\n{configured}"):
        assert line_of(code, BOOKKEEPER_LOG_LEVEL="INFO") == "INFO of mine: a line\n"


def test_a_level_that_does_not_exist_is_told() -> None:
    told = line_of("import bk_core", BOOKKEEPER_LOG_FORMAT="xml")
    assert told == "BOOKKEEPER_LOG_FORMAT is 'xml', which is no format; there are json and text\n"
    told = line_of("import bk_core", BOOKKEEPER_LOG_LEVEL="loud")
    assert told == "BOOKKEEPER_LOG_LEVEL is 'LOUD', which is no level; there are DEBUG, INFO, WARNING, ERROR, CRITICAL\n"


@pytest.fixture
def talking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that logs."""

    @click.command()
    @click.option("--uri")
    def talk(uri: str | None) -> None:
        logging.getLogger("bk_core.net").info("\x1b[31mred")
        logging.getLogger("bk_core.net").debug("details")

    monkeypatch.setitem(cli.cli.commands, "talk", talk)
    yield


def test_verbose_shows_the_lines_of_one_command(talking: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's; a program that configures logging shows the lines itself

    def said(*words: str) -> list[str]:
        assert cli.run([*words]) == 0
        return [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]

    first = "INFO bk_core.net: \\x1b[31mred"
    assert said("talk") == []
    assert said("--verbose", "talk") == [first]
    assert said("-vv", "talk") == [first, "DEBUG bk_core.net: details"]
    assert said("talk") == []


def test_verbose_behind_the_command_is_told_its_place(talking: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["talk", "--verbose"]) == 2
    assert "it goes in front of the command, as in `bk --verbose talk ...`" in capsys.readouterr().err


def test_every_logger_is_in_the_list() -> None:
    found = set()
    for package in log_lines.ROOTS:
        for path in (ROOT / package).rglob("*.py"):
            if "getLogger" not in text_of(path):
                continue
            for node in ast.walk(ast.parse(text_of(path))):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger" and node.args:
                    (name,) = node.args
                    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                    found.add(name.value if isinstance(name, ast.Constant) else module if ast.unparse(name) == "__name__" else "")
    ours = {str(name) for name in found if str(name).startswith("bk_")} - set(log_lines.ROOTS)
    listed = set(log_lines.LOGGERS)
    assert len(ours) > 10
    assert {name for name in ours if not any(name == one or name.startswith(f"{one}.") for one in listed)} == set()
    unused = {one for one in listed if not any(name == one or name.startswith(f"{one}.") for name in ours)}
    assert unused <= {"bk_core.metadata.kazoo"}  # whose name is a constant of its module


# --- completion ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(shell: str) -> None:
    shown = CliRunner().invoke(cli.cli, ["completion", shell]).output
    assert "_BK_COMPLETE" in shown and f"{shell}_complete" in shown


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """As a shell does: the function is defined by what is printed, and asks ``bk``."""
    assert shutil.which("bash") is not None
    program = tmp_path / "bk"
    program.write_text(f"#!{sys.executable}\nfrom bk_core.cli import main\nmain()\n")
    program.chmod(0o755)
    ask = 'eval "$(bk completion bash)"; COMP_WORDS=(bk ledger {0}); COMP_CWORD=2; _bk_completion bk; echo "${{COMPREPLY[@]}}"'
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def completed(word: str) -> str:
        return subprocess.run(
            ["bash", "-c", ask.format(word)], env=environment, capture_output=True, timeout=60, check=True
        ).stdout.decode()

    assert completed("re").split() == ["read", "recover", "repair"]
