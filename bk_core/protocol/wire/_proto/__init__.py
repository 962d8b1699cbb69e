"""Messages of protocol v3: ``make proto`` made the modules of ``bookie.proto``.

A protobuf loads what a generator of its own version or an older one made, so an old generator is used on purpose (requirements-proto.in).
"""
