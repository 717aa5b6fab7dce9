"""AWS: secrets, Lambda, SQS, S3, metrics and log lines."""
