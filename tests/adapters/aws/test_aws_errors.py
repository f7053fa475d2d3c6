"""Each error of the library or of a service becomes one of ours, with one line and a next step."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto

from hyperpod import errors
from hyperpod.adapters.aws.errors import right_of, translate


def answer(code: str, message: str = "because", status: int = 400, **more: str) -> boto.ClientError:
    """Return an error as botocore makes it from a service's answer."""
    return boto.ClientError(
        {"Error": {"Code": code, "Message": message, **more}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "CreateCluster",
    )


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("ThrottlingException", "Rate exceeded", errors.Throttled),
        ("RequestLimitExceeded", "Request limit exceeded.", errors.Throttled),
        ("SlowDown", "Please reduce your request rate.", errors.Throttled),
        ("LimitExceededException", "Rate exceeded", errors.Throttled),
        ("AccessDeniedException", "no", errors.AccessDenied),
        ("UnauthorizedOperation", "You are not authorized to perform this operation.", errors.AccessDenied),
        ("ExpiredTokenException", "The security token included in the request is expired", errors.AccessDenied),
        ("RequestExpired", "Request has expired.", errors.AccessDenied),
        ("UnrecognizedClientException", "The security token is invalid.", errors.AccessDenied),
        ("InvalidClientTokenId", "The security token is invalid", errors.AccessDenied),
        ("AuthFailure", "AWS was not able to validate the provided access credentials", errors.AccessDenied),
        ("InsufficientInstanceCapacity", "We currently do not have sufficient capacity", errors.NoCapacity),
        ("Unsupported", "not supported in your requested Availability Zone", errors.NoCapacity),
        ("ResourceLimitExceeded", "The account-level service limit is 0 Instances", errors.QuotaExceeded),
        ("VcpuLimitExceeded", "more vCPU capacity than your limit", errors.QuotaExceeded),
        ("InstanceLimitExceeded", "more instances than your quota", errors.QuotaExceeded),
        ("ResourceNotFound", "Cluster with name x does not exist", errors.NotFound),
        ("ValidationException", "Could not find cluster 'x'.", errors.NotFound),
        ("InvalidInstanceID.NotFound", "The instance ID does not exist", errors.NotFound),
        ("InvalidLaunchTemplateName.NotFoundException", "does not exist", errors.NotFound),
        ("NoSuchBucket", "The specified bucket does not exist", errors.NotFound),
        ("ResourceInUse", "Cluster with name x already exists", errors.AlreadyExists),
        ("InvalidGroup.Duplicate", "already exists", errors.AlreadyExists),
        ("ConflictException", "Cluster is in Updating status", errors.InvalidState),
        ("DependencyViolation", "has a dependent object", errors.InvalidState),
        ("ValidationException", "1 validation error detected", errors.ConfigError),
        ("InvalidParameterValue", "no", errors.ConfigError),
        ("InternalFailure", "", errors.ProviderUnavailable),
        ("ServiceUnavailable", "", errors.ProviderUnavailable),
        ("PermanentRedirect", "must be addressed using the specified endpoint", errors.ConfigError),
        ("SomethingNew", "what", errors.ConfigError),
    ],
)
def test_a_code_of_a_service_becomes_a_class_of_ours(code: str, message: str, kind: type[errors.HyperpodError]) -> None:
    found = translate(answer(code, message), "sagemaker", "CreateCluster", region="us-west-2", what="cluster x")
    assert type(found) is kind
    assert "\n" not in found.message


def test_a_missing_right_names_the_action_from_the_answer() -> None:
    text = (
        "User: arn:aws:sts::111122223333:assumed-role/dev/me is not authorized to perform: iam:PassRole "
        "on resource: arn:aws:iam::111122223333:role/Worker because no identity-based policy allows it"
    )
    found = translate(answer("AccessDeniedException", text, 403), "sagemaker", "CreateCluster")
    assert found.message == "no right to do iam:PassRole on arn:aws:iam::111122223333:role/Worker"
    assert "allow iam:PassRole" in found.hint


def test_a_missing_right_is_named_by_the_call_when_the_answer_says_nothing() -> None:
    found = translate(answer("UnauthorizedOperation", "You are not authorized.", 403), "ec2", "DescribeSubnets")
    assert "ec2:DescribeSubnets" in found.message


def test_a_forbidden_list_of_a_bucket_names_the_right_and_not_the_call() -> None:
    found = translate(answer("403", "Forbidden", 403), "s3", "HeadBucket", what="s3://b/p")
    assert "s3:ListBucket" in found.message
    assert right_of("service-quotas", "GetServiceQuota") == "servicequotas:GetServiceQuota"


def test_an_explicit_deny_is_told_since_no_further_right_helps() -> None:
    text = (
        "User: x is not authorized to perform: sagemaker:CreateCluster on resource: * "
        "with an explicit deny in a service control policy"
    )
    found = translate(answer("AccessDeniedException", text), "sagemaker", "CreateCluster")
    assert "a service control policy" in found.message


def test_expired_credentials_say_how_to_log_in() -> None:
    found = translate(answer("ExpiredTokenException"), "sts", "GetCallerIdentity")
    assert "expired" in found.message
    assert "aws sso login" in found.hint


def test_a_bucket_elsewhere_names_its_region() -> None:
    error = answer("AuthorizationHeaderMalformed", "the region is wrong", Region="eu-west-1")
    found = translate(error, "s3", "ListObjectsV2", region="us-west-2", what="s3://b")
    assert "another region" in found.message
    assert "eu-west-1" in found.hint


def test_a_missing_thing_says_where_it_was_looked_for() -> None:
    found = translate(
        answer("ResourceNotFound", "no"), "sagemaker", "DescribeCluster", region="us-west-2", what="cluster x"
    )
    assert "cluster x" in found.message
    assert "us-west-2" in found.message
    assert "--region" in found.hint


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (boto.NoCredentialsError(), errors.AccessDenied, "credentials"),
        (boto.SSOTokenLoadError(error_msg="old"), errors.AccessDenied, "login has expired"),
        (boto.ProfileNotFound(profile="p"), errors.ConfigError, "p"),
        (boto.NoRegionError(), errors.ConfigError, "region"),
        (boto.InvalidRegionError(region_name="us west"), errors.ConfigError, "region"),
        (boto.EndpointConnectionError(endpoint_url="https://x"), errors.ProviderUnavailable, "cannot be reached"),
        (boto.ConnectTimeoutError(endpoint_url="https://x"), errors.ProviderUnavailable, "broke"),
        (boto.ReadTimeoutError(endpoint_url="https://x"), errors.ProviderUnavailable, "broke"),
        (boto.ConnectionClosedError(endpoint_url="https://x"), errors.ProviderUnavailable, "broke"),
        (boto.ProxyConnectionError(proxy_url="http://p"), errors.ProviderUnavailable, "proxy"),
        (boto.SSLError(endpoint_url="https://x", error="cert"), errors.ProviderUnavailable, "trusted"),
        (boto.ParamValidationError(report="x"), errors.ConfigError, "not a valid request"),
        (ZeroDivisionError("x"), errors.ProviderError, "ZeroDivisionError"),
    ],
)
def test_an_error_of_the_library_becomes_a_class_of_ours(
    error: Exception, kind: type[errors.HyperpodError], words: str
) -> None:
    found = translate(error, "sagemaker", "DescribeCluster", region="us-west-2")
    assert type(found) is kind
    assert words in found.message


def test_what_may_pass_has_a_delay_and_what_stays_has_none() -> None:
    passing = ("ThrottlingException", "InsufficientInstanceCapacity", "InternalFailure")
    assert all(translate(answer(code), "ec2", "RunInstances").retry_after for code in passing)
    staying = ("AccessDenied", "VcpuLimitExceeded", "ValidationError")
    assert not any(translate(answer(code), "ec2", "RunInstances").retry_after for code in staying)


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = errors.NotFound("x")
    assert translate(error, "s3", "GetObject") is error
