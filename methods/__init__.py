"""One subpackage per paper: the method alone."""

if __name__ != "ritornello.methods":
    raise ImportError("import this package as 'ritornello.methods', not as 'methods'")
