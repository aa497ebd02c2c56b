"""Errors of values, schemas and their registry."""


class NotDecodableError(ValueError):
    """An invalid record. The text is stored with it."""


class SchemaError(ValueError):
    """A schema that cannot become columns. The text names the part and the reason."""


class RegistryError(Exception):
    """The registry failed or gave an unexpected answer. The text names it."""


class UnknownSchemaError(Exception):
    """The registry has no such schema or subject."""


class SnapshotError(Exception):
    """A version of a table that cannot be made from the one before. The text names both and the reason."""


class JoinError(Exception):
    """Files that cannot be joined. The text names the one."""


class PublishError(Exception):
    """A table that another catalog does not show as it should. The text names the catalog and the reason."""


class ExternalCatalogError(PublishError):
    """Another catalog that cannot be reached, or refuses the node: it would be the same for each table."""


class ForeignTableError(PublishError):
    """Another catalog has something else under the name of a table."""
