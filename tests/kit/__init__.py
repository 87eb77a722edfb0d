"""Helpers that several test suites share: real servers in the background, plain builders."""
