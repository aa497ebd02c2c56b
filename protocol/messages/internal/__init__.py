"""Messages that nodes send to each other's internal ports only. Their API keys are beyond Apache Kafka's."""
