"""Turn every error of botocore into one of ours, once: what happened, what to do next, and whether to try again.

Owns the table of the services' error codes. Nothing above ``adapters.aws`` sees a botocore error; the original stays
as the cause (``raise … from``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from botocore import exceptions as boto

from hyperpod.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigError,
    HyperpodError,
    InvalidState,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)

_LOGIN_ERRORS: Final = tuple(
    getattr(boto, name)
    for name in (
        "TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError", "NoAuthTokenError", "LoginError",
    )
    # Nodes have the distribution's library, which is older than a laptop's and does not know them all.
    if hasattr(boto, name)
)  # fmt: skip
_THROTTLED: Final = frozenset(
    {
        "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
        "TooManyRequestsException", "RequestLimitExceeded", "BandwidthLimitExceeded", "SlowDown",
        "ProvisionedThroughputExceededException", "PriorRequestNotComplete", "EC2ThrottledException",
        "TransactionInProgressException", "ConcurrentTagAccess",
    }
)  # fmt: skip
_DENIED: Final = frozenset(
    {
        "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "UnauthorizedException",
        "AuthorizationError", "NotAuthorized", "Forbidden", "403", "OptInRequired",
    }
)  # fmt: skip
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_BAD_KEYS: Final = frozenset(
    {
        "UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch",
        "InvalidSignatureException", "AuthFailure", "IncompleteSignature", "MissingAuthenticationToken",
        "InvalidToken", "NotSignedUp",
    }
)  # fmt: skip
_CAPACITY: Final = frozenset(
    {
        "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
        "InsufficientCapacityOnHost", "InsufficientCapacity", "CapacityError", "InsufficientAddressCapacity",
        "InsufficientVolumeCapacity", "SpotMaxPriceTooLow", "ReservationCapacityExceeded", "Unsupported",
    }
)  # fmt: skip
_QUOTA: Final = frozenset(
    {
        "ResourceLimitExceeded", "InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded",
        "ServiceQuotaExceededException", "ServiceLimitExceeded", "LimitExceeded", "LimitExceededException",
        "VpcLimitExceeded", "AddressLimitExceeded", "SecurityGroupLimitExceeded", "NatGatewayLimitExceeded",
        "SubnetLimitExceeded", "VolumeLimitExceeded", "TooManyBuckets",
    }
)  # fmt: skip
_MISSING: Final = frozenset(
    {
        "ResourceNotFound", "ResourceNotFoundException", "NoSuchBucket", "NoSuchKey", "NoSuchEntity", "404",
        "NotFound", "NotFoundException", "ParameterNotFound", "FileSystemNotFound", "NoSuchResourceException",
    }
)  # fmt: skip
_EXISTS: Final = frozenset(
    {
        "ResourceInUse", "AlreadyExists", "AlreadyExistsException", "EntityAlreadyExists",
        "EntityAlreadyExistsException", "BucketAlreadyExists", "BucketAlreadyOwnedByYou",
        "ResourceAlreadyExistsException", "IdempotentParameterMismatch",
    }
)  # fmt: skip
_BUSY: Final = frozenset(
    {
        "ConflictException", "Conflict", "IncorrectState", "IncorrectInstanceState", "IncorrectStateException",
        "DependencyViolation", "OperationAborted", "DeleteConflict", "InvalidState", "ResourceInUseException",
    }
)  # fmt: skip
_REGION: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
)
_INVALID: Final = frozenset(
    {
        "ValidationException", "ValidationError", "InvalidRequest", "InvalidRequestException",
        "MalformedPolicyDocument", "MissingParameter", "InvalidInput", "BadRequest", "UnknownParameter",
        "InvalidArgument",
    }
)  # fmt: skip
_AWAY: Final = frozenset(
    {
        "InternalFailure", "InternalError", "InternalServerError", "InternalServiceError", "ServiceUnavailable",
        "ServiceUnavailableException", "Unavailable", "ServerInternal", "RequestTimeout", "RequestTimeoutException",
        "500", "502", "503", "504",
    }
)  # fmt: skip

_RIGHTS: Final[Mapping[tuple[str, str], str]] = {
    ("s3", "ListObjectsV2"): "s3:ListBucket",
    ("s3", "HeadBucket"): "s3:ListBucket",
    ("s3", "HeadObject"): "s3:GetObject",
    ("s3", "DeleteObjects"): "s3:DeleteObject",
    ("s3", "ListObjectVersions"): "s3:ListBucketVersions",
    ("s3", "GetPublicAccessBlock"): "s3:GetBucketPublicAccessBlock",
    ("s3", "PutPublicAccessBlock"): "s3:PutBucketPublicAccessBlock",
    ("s3", "GetBucketEncryption"): "s3:GetEncryptionConfiguration",
    ("s3", "PutBucketEncryption"): "s3:PutEncryptionConfiguration",
    ("service-quotas", "ListServiceQuotas"): "servicequotas:ListServiceQuotas",
}
_TAGGING: Final[Mapping[tuple[str, str], str]] = {
    ("ec2", operation): "ec2:CreateTags"
    for operation in (
        "AllocateAddress", "CreateInternetGateway", "CreateLaunchTemplate", "CreateNatGateway", "CreatePlacementGroup",
        "CreateRouteTable", "CreateSecurityGroup", "CreateSubnet", "CreateVpc", "CreateVpcEndpoint", "RunInstances",
    )
} | {
    ("fsx", "CreateFileSystem"): "fsx:TagResource",
    ("iam", "CreateInstanceProfile"): "iam:TagInstanceProfile",
    ("iam", "CreateRole"): "iam:TagRole",
    ("sagemaker", "CreateCluster"): "sagemaker:AddTags",
}  # fmt: skip
"""What the services ask for besides, since all that is made is tagged by the call that makes it."""
_PREFIXES: Final = {"service-quotas": "servicequotas", "cloudwatch": "cloudwatch"}
_QUOTED_ACTION: Final = re.compile(
    r"(?:not authorized to perform|perform this operation)[: ]+\(?([a-z0-9-]+:[A-Za-z*]+)"
)
_NOT_THERE: Final = re.compile(
    r"could not find|does not exist|not found|no such|cannot be found|unable to (?:find|describe)", re.I
)
_RUNNING_OUT: Final = re.compile(
    r"insufficient capacity|do(?:es)? not have sufficient|capacity (?:error|unavailable)", re.I
)

LOGIN_HINT: Final = (
    "log in again (aws sso login, aws configure), or set AWS_PROFILE; aws sts get-caller-identity tries it"
)
_QUOTA_HINT: Final = (
    "ask for more: console Service Quotas (for HyperPod the quotas of Amazon SageMaker named "
    '"... for cluster usage"), or use fewer instances'
)
_CAPACITY_HINT: Final = "try again later, in another zone or with another instance type, or reserve capacity"


def right_of(service: str, operation: str) -> str:
    """Return the IAM action that an operation needs, such as ``sagemaker:CreateCluster``."""
    return _RIGHTS.get((service, operation), f"{_PREFIXES.get(service, service)}:{operation}")


def rights_for(service: str, operation: str) -> tuple[str, ...]:
    """Return every IAM action that an operation needs as it is called here, its own first."""
    more = [_TAGGING[service, operation]] if (service, operation) in _TAGGING else []
    # Versions of objects are removed, too, where a bucket keeps them.
    more += ["s3:DeleteObjectVersion"] if (service, operation) == ("s3", "DeleteObjects") else []
    return (right_of(service, operation), *more)


def translate(error: Exception, service: str, operation: str, *, region: str = "", what: str = "") -> HyperpodError:
    """Return the error of ours that says what botocore's said.

    Pure.

    Args:
        error: As botocore raised it.
        service, operation: The call, such as ``sagemaker`` and ``CreateCluster``.
        region: Where it was sent, for the message.
        what: The object that the call was about, such as ``cluster ml-1``.
    """
    if isinstance(error, HyperpodError):
        return error
    if isinstance(error, boto.ClientError):
        return _from_answer(error, service, operation, region, what)
    return _from_library(error, service, operation, region)


def _from_answer(error: boto.ClientError, service: str, operation: str, region: str, what: str) -> HyperpodError:
    details: Mapping[str, Any] = error.response.get("Error", {})
    code = str(details.get("Code", "")).partition("#")[2] or str(details.get("Code", ""))
    code = code.rpartition(":")[2].rpartition(".")[2] if code.startswith(("Client.", "Server.")) else code
    text = " ".join(str(details.get("Message") or "").split()) or f"answered {code or 'with an error'}"
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    about = what or f"{service} {operation}"
    place = f" in {region}" if region else ""
    # Quotas: some services call their throttling "LimitExceeded" with a rate in the text.
    if code in _THROTTLED or (code in _QUOTA and re.search(r"\brate exceeded\b", text, re.I)):
        return Throttled(
            f"AWS asks to slow down: {about}: {text}", hint="wait a little, then run the same command again"
        )
    if code in _EXPIRED:
        return AccessDenied(f"the AWS credentials have expired ({about})", hint=LOGIN_HINT)
    if code in _BAD_KEYS:
        hint = f"{LOGIN_HINT}; a region that must be switched on first refuses good credentials, too"
        return AccessDenied(f"AWS does not accept the credentials{place}: {text}", hint=hint)
    if code in _DENIED or (status == 403 and code not in _MISSING | _EXISTS):
        return _denied(text, service, operation, what)
    if code in _CAPACITY or _RUNNING_OUT.search(text):
        return NoCapacity(f"AWS has no capacity now: {about}: {text}", hint=_CAPACITY_HINT)
    if code in _QUOTA or code.endswith(("LimitExceeded", "QuotaExceeded")):
        return QuotaExceeded(f"a quota of the account is reached: {text}", hint=_QUOTA_HINT)
    if code in _REGION:
        endpoint = str(details.get("Endpoint") or details.get("Region") or "")
        hint = f"it is at {endpoint}; name its region with --region" if endpoint else "name its region with --region"
        return ConfigError(f"{about} is in another region{', not' + place if place else ''}: {text}", hint=hint)
    # SageMaker says "ValidationException" for names that it does not know.
    if (
        code in _MISSING
        or code.endswith(("NotFound", "NotFoundException"))
        or (code in _INVALID and _NOT_THERE.search(text))
    ):
        return NotFound(f"{what or about}: {text}{_not_in(place, text)}", hint=_elsewhere(region))
    if code in _EXISTS or code.endswith((".Duplicate", "AlreadyExists", "AlreadyExistsException", ".InUse")):
        return AlreadyExists(f"{about}: {text}", hint="choose another name, or delete what is there")
    if code in _BUSY:
        return InvalidState(_words(operation, what), f"not in a state for it: {text}", hint="wait until it is done")
    if code in _AWAY or status >= 500:
        return ProviderUnavailable(
            f"AWS has trouble{place}: {about}: {text} ({code})", hint="run the same command again"
        )
    if code in _INVALID or code.startswith("Invalid") or status == 400:
        return ConfigError(f"AWS refuses the request ({about}): {text}", hint="hyperpod validate SPEC --online")
    return ProviderError(f"{about}: {text} ({code})")


def _denied(text: str, service: str, operation: str, what: str) -> AccessDenied:
    named = _QUOTED_ACTION.search(text)
    action = named[1] if named else right_of(service, operation)
    resource = re.search(r"on resource: (\S+)", text)
    where = f" on {resource[1]}" if resource else f" ({what})" if what else ""
    why = ""
    if "explicit deny" in text:
        kind = re.search(r"explicit deny in an? ([a-z -]+policy|permissions boundary)", text)
        why = f"; it is denied by {'a ' + kind[1] if kind else 'a policy'}, which no further right overrules"
    hint = f"allow {action} to the caller: docs/reference/aws-calls.md has the policy that hyperpod needs"
    return AccessDenied(f"no right to do {action}{where}{why}", hint=hint)


def _from_library(error: Exception, service: str, operation: str, region: str) -> HyperpodError:
    text = " ".join(str(error).split())
    place = f" in region {region}" if region else ""
    match error:
        case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.CredentialRetrievalError():
            return AccessDenied(f"no usable AWS credentials: {text}", hint=LOGIN_HINT)
        case _ if isinstance(error, _LOGIN_ERRORS):
            return AccessDenied(f"the AWS login has expired: {text}", hint=LOGIN_HINT)
        case boto.ProfileNotFound():
            return ConfigError(text, hint="aws configure list-profiles shows those there are")
        case boto.NoRegionError() | boto.UnknownRegionError():
            return ConfigError("no AWS region is set", hint="--region us-west-2, or AWS_REGION=us-west-2")
        case boto.InvalidRegionError():
            return ConfigError(f"{region or 'the region'} cannot be the name of a region", hint="--region us-west-2")
        case boto.EndpointConnectionError():
            hint = "is the region's name right, the network up, and a proxy or VPC endpoint needed?"
            return ProviderUnavailable(f"{service} cannot be reached{place}: {text}", hint=hint)
        case boto.ProxyConnectionError():
            return ProviderUnavailable(f"the proxy does not answer: {text}", hint="HTTPS_PROXY, NO_PROXY")
        case boto.SSLError():
            hint = "AWS_CA_BUNDLE names the certificates of a proxy that opens TLS"
            return ProviderUnavailable(f"no trusted connection to {service}{place}: {text}", hint=hint)
        case (
            boto.HTTPClientError() | boto.ConnectionError() | boto.ResponseStreamingError() | boto.IncompleteReadError()
        ):
            hint = "run the same command again: it goes on where it was"
            return ProviderUnavailable(f"the connection to {service}{place} broke in {operation}: {text}", hint=hint)
        case boto.ParamValidationError():
            return ConfigError(f"not a valid request for {service} {operation}: {text}")
        case boto.UnknownServiceError() | boto.DataNotFoundError():
            return ConfigError(text, hint="pip install 'boto3>=1.44'")
        case boto.BotoCoreError():
            return ProviderError(f"{service} {operation}: {text}")
    return ProviderError(f"{service} {operation}: {type(error).__name__}: {text}")


def _words(operation: str, what: str) -> str:
    """``UpdateCluster`` and ``cluster ml-1`` become ``update cluster ml-1``."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", operation).lower()
    verb, _, rest = spaced.partition(" ")
    return f"{verb} {what or rest}"


def _not_in(place: str, text: str) -> str:
    return "" if not place or place.strip() in text else f" (looked{place})"


def _elsewhere(region: str) -> str:
    return f"another region than {region}, or another account? --region, AWS_PROFILE" if region else ""
