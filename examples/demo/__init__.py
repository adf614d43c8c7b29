"""The demonstration that ``make demo`` runs: real flights, real faults, every row compared."""
