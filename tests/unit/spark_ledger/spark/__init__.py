"""Unit tests of what watches Spark's queries."""
