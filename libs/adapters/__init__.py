"""What touches the world outside: device drivers, Redis, MongoDB. Each seam is small enough to be replaced in a test."""
