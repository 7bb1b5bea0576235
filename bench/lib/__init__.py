"""What the benchmarks share: rows of results.csv, clocks, pictures, peers."""
