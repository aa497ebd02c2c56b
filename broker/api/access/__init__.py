"""Authorization of requests, before and after their handlers: one guard for each API, where Apache Kafka checks it.

A guard refuses a request, or passes it to the handler without what the client may not do, and amends the answer: it
adds the errors for what it has taken out, and leaves out what the client must not know of. Handlers know nothing of it,
except Fetch and ConsumerGroupHeartbeat: sessions and patterns of topics outlive a request.

Without an authorizer there are no guards, and requests go to the handlers as they are.
"""
