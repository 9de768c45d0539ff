"""How Spark starts quickly for what does not live long: campaigns, and tests."""

# Switches of a JVM: it gains nothing from the second compiler, or from threads that collect garbage.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Settings of a session: code that is made for each query costs more than it saves.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
