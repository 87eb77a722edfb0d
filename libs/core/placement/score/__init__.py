"""What a placement costs the requests that are still to come."""
