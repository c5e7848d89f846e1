"""Types of spans: personal data and secrets that are found with their exact place.

A policy may give rules by type beside rules by category. The words are those of Presidio where it
has one (in lower case), so that figures can be compared.
"""

from safety_svc.detectors.base import Category

EMAIL_ADDRESS = "email_address"
PHONE_NUMBER = "phone_number"
CARD_NUMBER = "card_number"
IBAN_CODE = "iban_code"
US_SSN = "us_ssn"
IP_ADDRESS = "ip_address"
STREET_ADDRESS = "street_address"

SECRET_FORMAT = "secret_format"  # noqa: S105 - the name of a type: a key of a known format
PRIVATE_KEY = "private_key"
SECRET_ENTROPY = "secret_entropy"  # noqa: S105 - random text beside a word such as "password"

PERSONAL = frozenset(
    {
        *(EMAIL_ADDRESS, PHONE_NUMBER, CARD_NUMBER, IBAN_CODE, US_SSN),
        *(IP_ADDRESS, STREET_ADDRESS),
    }
)
SECRETS = frozenset({SECRET_FORMAT, PRIVATE_KEY, SECRET_ENTROPY})
KINDS = PERSONAL | SECRETS
CATEGORIES = {
    **dict.fromkeys(sorted(PERSONAL), Category.PRIVACY),
    **dict.fromkeys(sorted(SECRETS), Category.SECRET),
}
