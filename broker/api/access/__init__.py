"""Authorization of requests, before and after their handlers, where Apache Kafka checks it; and audit of changes.

A guard refuses a request, or removes the parts that the client may not do and passes it to the handler. Then it amends
the answer: it adds errors for the removed parts, and hides what the client may not know. Each API declares its own in
the module of its handler; here is what guards have in common. The functions `handle` know nothing of it, except those
of Fetch and ConsumerGroupHeartbeat: sessions and patterns of topics outlive a request.

Without an authorizer there are no guards, and requests go to the handlers as they are.
"""
