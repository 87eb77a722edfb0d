"""Accounts, keys and credentials of the bus: what a team, a node, a service and an operator may say and hear, and how they
prove who they are. See docs/security.md.

`claims` is NATS's form of a signed claim, `accounts` what Baton claims, `keyring` the keys and credentials of an instance on
disk, `resolver` tells a running broker.
"""
