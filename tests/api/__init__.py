"""The HTTP face, over real sockets, on a scripted node."""
