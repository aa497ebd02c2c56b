"""Consumer groups: who is a member, which generation they are in, and which offsets they have committed."""
