"""The front: a tiny process that owns the public sockets, so that nobody who waits sees a restart of the server.

It lends its listening sockets to the server (`lending`, `loan`). While no server has them it accepts itself and gives the
answers that keep each client waiting (`away`). It knows a handful of messages, and holds what it does not
know: an old front may stand before a newer server.
"""
