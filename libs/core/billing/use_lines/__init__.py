"""Uses as they were posted, line by line, and the money that they came to: old ones as bytes."""
