"""What all tests share: the fixtures that start services and write tiny models."""

import grpc.aio

# Held for the whole run: a server or channel that a failed test left behind then dies at a garbage collection
# without joining gRPC's poller thread there, which would hang or crash the tests after it.
grpc.aio.init_grpc_aio()

pytest_plugins = ["tests.e2e.plugin"]
