"""Operators that several methods share, each with a reference and faster backends."""
