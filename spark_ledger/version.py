"""The version of the whole repository, its single source; ``setup.py`` reads this file."""

__version__ = "0.1.0"
