"""Pure decisions and the values they work on: no I/O, clock, logging, environment or randomness."""
