"""Tests of what is dropped of streams, and of what holds keep."""
