"""Histories of what clients did and saw, and checkers that judge them by the promises alone."""
