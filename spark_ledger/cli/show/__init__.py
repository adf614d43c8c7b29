"""What commands print: tables, pictures, cells."""
