#!/bin/sh
# Runs once, when the volume of PostgreSQL is new: a role and a database for the state, and for Dagster.
set -eu
psql -v ON_ERROR_STOP=1 -U "${POSTGRES_USER:-postgres}" -d postgres \
  -v state="$RIVET_STATE_PASSWORD" -v dagster="$DAGSTER_PG_PASSWORD" <<'SQL'
CREATE ROLE rivet LOGIN PASSWORD :'state';
CREATE DATABASE rivet OWNER rivet;
CREATE ROLE dagster LOGIN PASSWORD :'dagster';
CREATE DATABASE dagster OWNER dagster;
SQL
