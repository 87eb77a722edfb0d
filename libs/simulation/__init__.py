"""Baton's decisions without its services: `placer` scores the placement engine on recorded fleets."""
