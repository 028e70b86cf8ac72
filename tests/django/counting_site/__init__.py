"""A site for real web servers: each request reads a number, and writes it back plus one."""
