-- The number of fence counters of a prefix. Reads all of them.
--
-- $1 head   the prefix with its colon and "fence:"
-- $2 end    the text after all names with this head
SELECT count(*) FROM {fences} AS f WHERE f.fence_key >= $1 AND f.fence_key < $2
