// How schemas and subjects are shown: types, and the topic that a subject is named after.

/** Return the type of a version; the registry leaves out that of Avro. */
export const typeOf = (version) => ({ JSON: "JSON Schema", PROTOBUF: "Protobuf" })[version.schemaType] ?? "Avro";

/** Return a version as a payload that is shown. */
export const payloadOf = (version) => ({
  format: (version.schemaType ?? "AVRO").toLowerCase(),
  text: version.schema,
  size: new TextEncoder().encode(version.schema).length,
});

/** Return {topic, part} of a subject that follows TopicNameStrategy, else null; `part`: "key" or "value". */
export function topicOf(subject) {
  const [, topic, part] = /^(.+)-(key|value)$/s.exec(subject) ?? [];
  return topic === undefined ? null : { topic, part };
}

/** Return the subjects of a topic by TopicNameStrategy. */
export const subjectsOf = (topic) => [`${topic}-key`, `${topic}-value`];
