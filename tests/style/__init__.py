"""Tests of the sources themselves: what imports what, sizes, generated code, the public names."""
