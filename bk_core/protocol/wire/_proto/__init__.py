"""Messages of protocol v3, generated from ``bookie.proto``.

Generated code needs a protobuf runtime at least as new as its generator, so an old generator is used on purpose: grpcio-tools 1.73.0
(protobuf 6.31). Regenerate from the root of the repository with
``python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. bk_core/protocol/wire/_proto/bookie.proto``.
"""
