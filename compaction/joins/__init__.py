"""Second level of compaction: several stream objects of one stream become one."""
