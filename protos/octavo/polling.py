"""How gRPC waits for its sockets, in Octavo's own processes.

Owns that choice; knows no channel. Invariant: it is made when this module is imported, before anything
imports gRPC, which looks once; and an operator's own GRPC_EXPERIMENTS stands.

With its event engine, threads of gRPC wait for the sockets and hand what arrives to the thread that waits for
a message, which the system has to wake up too. Without it that thread waits for the sockets itself: one
wake-up less for each message, at each end of each connection.
"""

import os

VARIABLE = "GRPC_EXPERIMENTS"
POLL_WHERE_WAITING = "-event_engine_client,-event_engine_listener"

os.environ.setdefault(VARIABLE, POLL_WHERE_WAITING)
