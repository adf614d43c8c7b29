"""Scenario scripts: text in, text out, over the real protocol machines and a model of the world."""
