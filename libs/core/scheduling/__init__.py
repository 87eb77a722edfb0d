"""Who gets devices, and when: `cycle` is one scheduling cycle on a screen, `reactions` what each inbox message leads to,
`decider` joins both into one ledger record. Each policy is a package of its own beside them."""
