"""What several papers share."""

if __name__ != "ritornello.common":
    raise ImportError("import this package as 'ritornello.common', not as 'common'")
