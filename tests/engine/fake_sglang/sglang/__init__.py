"""Found in place of SGLang where a test puts this directory on the path of the server's Python."""
