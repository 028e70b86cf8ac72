-- Whether the tables and all functions exist.
SELECT to_regclass('{locks}') IS NOT NULL AND to_regclass('{fences}') IS NOT NULL
    AND to_regproc('{acquire}') IS NOT NULL AND to_regproc('{release}') IS NOT NULL
    AND to_regproc('{extend}') IS NOT NULL AND to_regproc('{adopt}') IS NOT NULL
    AND to_regproc('{undo}') IS NOT NULL
