"""What commands take: options of all, positions, amounts, columns."""
