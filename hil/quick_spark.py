"""Settings that start Spark quickly, for short-lived campaigns and tests."""

# JVM switches: short runs gain nothing from the second compiler or from parallel garbage collection.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Session settings: generating code for each query costs more than it saves.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
