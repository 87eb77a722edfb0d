"""The services: each a separate process that shares nothing with the others but subjects and schemas."""
