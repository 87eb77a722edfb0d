"""Helpers that several test suites share: real servers in the background, waiting without a clock."""
