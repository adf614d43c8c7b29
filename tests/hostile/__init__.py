"""Clients that attack a real bookie, beside one that must not notice."""
