"""The desk of an airline: flights, users and reservations."""

from copy import deepcopy
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rollout_kit import JsonObject, ToolError, tool

from .desk import Desk, text

NOW = "2024-05-15T15:00:00"

NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")

NEW_PAYMENTS = (3221322, 3221323, 3221324)

BAG, INSURED = 50, 30
"""Dollars for a bag, and for the insurance of a passenger."""

AIRPORTS = {
    **{"SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago"},
    **{"DFW": "Dallas", "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami"},
    **{"BOS": "Boston", "PHX": "Phoenix", "IAH": "Houston", "LAS": "Las Vegas"},
    **{"MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis"},
    **{"DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia"},
}


class FlightInfo(BaseModel):
    flight_number: str = Field(description="Flight number, such as 'HAT001'.")
    date: str = Field(
        description="The date for the flight in the format 'YYYY-MM-DD', such as '2024-05-01'."
    )


class Passenger(BaseModel):
    first_name: str = Field(description="Passenger's first name")
    last_name: str = Field(description="Passenger's last name")
    dob: str = Field(description="Date of birth in YYYY-MM-DD format")


class AirlinePayment(BaseModel):
    payment_id: str = Field(description="Unique identifier for the payment")
    amount: int = Field(description="Payment amount in dollars")


Cabin = Annotated[
    Literal["business", "economy", "basic_economy"],
    Field(description="The cabin class such as 'basic_economy', 'economy', or 'business'."),
]
FlightType = Annotated[
    Literal["round_trip", "one_way"],
    Field(description="The type of flight such as 'one_way' or 'round_trip'."),
]
Insurance = Annotated[
    Literal["yes", "no"], Field(description="Whether the reservation has insurance.")
]
Flights = Annotated[
    list[FlightInfo],
    Field(
        description="An array of objects containing details about each piece of flight. Example:"
        ' [{"flight_number": "HAT001", "date": "2024-05-01"}].'
    ),
]
AllFlights = Annotated[
    list[FlightInfo],
    Field(
        description="An array of objects containing details about each piece of flight in the"
        " ENTIRE new reservation. Even if the a flight segment is not changed, it should still be"
        ' included in the array. For example: [{"flight_number": "HAT001", "date": "2024-05-01"}]'
    ),
]
Passengers = Annotated[
    list[Passenger],
    Field(
        description="An array of objects containing details about each passenger. JSON schema of"
        ' Passenger: [{"first_name": "John", "last_name": "Doe", "dob": "1990-01-01"}].'
    ),
]
Payments = Annotated[
    list[AirlinePayment],
    Field(
        description="An array of objects containing details about each payment method. JSON schema"
        ' of Payment: [{"payment_id": "gift_card_3576581", "amount": 4986}].'
    ),
]
UserId = text("The ID of the user, such as 'sara_doe_496'.")
ReservationId = text("The reservation ID, such as 'ZFA04Y'.")
Origin = text("The origin city airport in three letters, such as 'JFK'.")
Destination = text("The destination city airport in three letters, such as 'LAX'.")
Day = text("The date of the flight in the format 'YYYY-MM-DD', such as '2024-01-01'.")
FlightNumber = text("The flight number.")
PaymentId = text(
    "The payment id stored in user profile, such as 'credit_card_7815826', 'gift_card_7815826',"
    " 'certificate_7815826'."
)


class AirlineDesk(Desk):
    """Tools of the agent of an airline."""

    @tool
    async def book_reservation(
        self,
        user_id: UserId,
        origin: text("The IATA code for the origin city such as 'SFO'."),
        destination: text("The IATA code for the destination city such as 'JFK'."),
        flight_type: FlightType,
        cabin: Cabin,
        flights: Flights,
        passengers: Passengers,
        payment_methods: Payments,
        total_baggages: Annotated[
            int,
            Field(description="The total number of baggage items to book the reservation."),
        ],
        nonfree_baggages: Annotated[
            int,
            Field(description="The number of non-free baggage items to book the reservation."),
        ],
        insurance: Insurance,
    ) -> JsonObject:
        """Book a reservation."""
        user, new_id = self._user(user_id), self._new_reservation()
        booked = [self._take(flight, cabin, len(passengers)) for flight in flights]
        total = sum(flight["price"] for flight in booked) * len(passengers)
        total += INSURED * len(passengers) * (insurance == "yes") + BAG * nonfree_baggages
        self._check_payments(user, payment_methods, total)
        for payment in payment_methods:
            method = user["payment_methods"][payment.payment_id]
            if method["source"] == "gift_card":
                method["amount"] -= payment.amount
            elif method["source"] == "certificate":
                del user["payment_methods"][payment.payment_id]
        for flight in flights:
            seats = self._status(flight.flight_number, flight.date)["available_seats"]
            seats[cabin] -= len(passengers)
        self.db.reservations[new_id] = {
            **{"reservation_id": new_id, "user_id": user_id, "origin": origin},
            **{"destination": destination, "flight_type": flight_type, "cabin": cabin},
            "flights": booked,
            "passengers": [each.model_dump() for each in passengers],
            "payment_history": [each.model_dump() for each in payment_methods],
            **{"created_at": NOW, "total_baggages": total_baggages},
            **{"nonfree_baggages": nonfree_baggages, "insurance": insurance, "status": None},
        }
        user["reservations"].append(new_id)
        return self.db.reservations[new_id]

    @tool
    async def cancel_reservation(self, reservation_id: ReservationId) -> JsonObject:
        """Cancel the whole reservation."""
        found = self._reservation(reservation_id)
        refunds = [{**each, "amount": -each["amount"]} for each in found["payment_history"]]
        found["payment_history"] += refunds
        found["status"] = "cancelled"
        return found

    @tool
    async def get_reservation_details(self, reservation_id: ReservationId) -> JsonObject:
        """Get the details of a reservation."""
        return self._reservation(reservation_id)

    @tool
    async def get_user_details(self, user_id: UserId) -> JsonObject:
        """Get the details of a user, including their reservations."""
        return self._user(user_id)

    @tool
    async def list_all_airports(self) -> list[JsonObject]:
        """Returns a list of all available airports."""
        return [{"iata": code, "city": city} for code, city in AIRPORTS.items()]

    @tool
    async def search_direct_flight(
        self, origin: Origin, destination: Destination, date: Day
    ) -> list[JsonObject]:
        """Search for direct flights between two cities on a specific date."""
        return self._search(date, origin, destination)

    @tool
    async def search_onestop_flight(
        self, origin: Origin, destination: Destination, date: Day
    ) -> list[list[JsonObject]]:
        """Search for one-stop flights between two cities on a specific date."""
        pairs = []
        for first in self._search(date, origin, None):
            arrives, day = first["scheduled_arrival_time_est"], date
            if "+1" in arrives:
                day = f"2024-05-{int(date[-2:]) + 1}"
            pairs += [
                [{**first, "date": date}, {**second, "date": day}]
                for second in self._search(day, first["destination"], destination, arrives)
            ]
        return pairs

    @tool
    async def send_certificate(
        self,
        user_id: UserId,
        amount: Annotated[int, Field(description="The amount of the certificate to send.")],
    ) -> str:
        """Send a certificate to a user. Be careful!"""
        methods = self._user(user_id)["payment_methods"]
        for number in NEW_PAYMENTS:
            name = f"certificate_{number}"
            if name not in methods:
                methods[name] = {"source": "certificate", "id": name, "amount": amount}
                return f"Certificate {name} added to user {user_id} with amount {amount}."
        raise ToolError("Too many certificates")

    @tool
    async def update_reservation_baggages(
        self,
        reservation_id: ReservationId,
        total_baggages: Annotated[
            int,
            Field(
                description="The updated total number of baggage items included in the reservation."
            ),
        ],
        nonfree_baggages: Annotated[
            int,
            Field(
                description="The updated number of non-free baggage items included in the"
                " reservation."
            ),
        ],
        payment_id: PaymentId,
    ) -> JsonObject:
        """Update the baggage information of a reservation."""
        found = self._reservation(reservation_id)
        more = max(0, nonfree_baggages - found["nonfree_baggages"])
        self._pay(found, payment_id, BAG * more)
        found["total_baggages"], found["nonfree_baggages"] = total_baggages, nonfree_baggages
        return found

    @tool
    async def update_reservation_flights(
        self,
        reservation_id: ReservationId,
        cabin: Cabin,
        flights: AllFlights,
        payment_id: PaymentId,
    ) -> JsonObject:
        """Update the flight information of a reservation."""
        found = self._reservation(reservation_id)
        number, taken = len(found["passengers"]), list[JsonObject]()
        for flight in flights:
            wanted = (flight.flight_number, flight.date, cabin)
            kept = (
                each
                for each in found["flights"]
                if (each["flight_number"], each["date"], found["cabin"]) == wanted
            )
            taken.append(next(kept, None) or self._take(flight, cabin, number))
        before, after = (sum(each["price"] for each in own) for own in (found["flights"], taken))
        self._pay(found, payment_id, (after - before) * number)
        found["flights"], found["cabin"] = taken, cabin
        return found

    @tool
    async def update_reservation_passengers(
        self, reservation_id: ReservationId, passengers: Passengers
    ) -> JsonObject:
        """Update the passenger information of a reservation."""
        found = self._reservation(reservation_id)
        if len(passengers) != len(found["passengers"]):
            raise ToolError("Number of passengers does not match")
        found["passengers"] = [each.model_dump() for each in passengers]
        return found

    @tool
    async def get_flight_status(
        self, flight_number: FlightNumber, date: text("The date of the flight.")
    ) -> str:
        """Get the status of a flight."""
        return self._status(flight_number, date)["status"]

    def _user(self, user_id: str) -> JsonObject:
        if user_id not in self.db.users:
            raise ToolError(f"User {user_id} not found")
        return self.db.users[user_id]

    def _reservation(self, reservation_id: str) -> JsonObject:
        if reservation_id not in self.db.reservations:
            raise ToolError(f"Reservation {reservation_id} not found")
        return self.db.reservations[reservation_id]

    def _new_reservation(self) -> str:
        for name in NEW_RESERVATIONS:
            if name not in self.db.reservations:
                return name
        raise ToolError("Too many reservations")

    def _flight(self, number: str) -> JsonObject:
        if number not in self.db.flights:
            raise ToolError(f"Flight {number} not found")
        return self.db.flights[number]

    def _status(self, number: str, date: str) -> JsonObject:
        dates = self._flight(number)["dates"]
        if date not in dates:
            raise ToolError(f"Flight {number} not found on date {date}")
        return dates[date]

    def _take(self, wanted: FlightInfo, cabin: str, number: int) -> JsonObject:
        """A flight of a reservation; ToolError if it has not so many seats."""
        flight = self._flight(wanted.flight_number)
        status = self._status(wanted.flight_number, wanted.date)
        if status["status"] != "available":
            raise ToolError(f"Flight {wanted.flight_number} not available on date {wanted.date}")
        if status["available_seats"][cabin] < number:
            raise ToolError(f"Not enough seats on flight {wanted.flight_number}")
        return {
            **{"origin": flight["origin"], "destination": flight["destination"]},
            **{"flight_number": wanted.flight_number, "date": wanted.date},
            "price": status["prices"][cabin],
        }

    def _check_payments(self, user: JsonObject, payments: list[AirlinePayment], total: int) -> None:
        for payment in payments:
            method = user["payment_methods"].get(payment.payment_id)
            if method is None:
                raise ToolError(f"Payment method {payment.payment_id} not found")
            is_credit = method["source"] in ("gift_card", "certificate")
            if is_credit and method["amount"] < payment.amount:
                raise ToolError(f"Not enough balance in payment method {payment.payment_id}")
        paid = sum(payment.amount for payment in payments)
        if paid != total:
            raise ToolError(
                f"Payment amount does not add up, total price is {total}, but paid {paid}"
            )

    def _pay(self, reservation: JsonObject, payment_id: str, price: int) -> None:
        """Pay, or get back, what a change costs; ToolError if that cannot be."""
        method = self._user(reservation["user_id"])["payment_methods"].get(payment_id)
        if method is None:
            raise ToolError("Payment method not found")
        if method["source"] == "certificate":
            raise ToolError("Certificate cannot be used to update reservation")
        if method["source"] == "gift_card":
            if method["amount"] < price:
                raise ToolError("Gift card balance is not enough")
            method["amount"] -= price
        if price:
            reservation["payment_history"].append({"payment_id": payment_id, "amount": price})

    def _search(
        self, date: str, origin: str | None, destination: str | None, after: str | None = None
    ) -> list[JsonObject]:
        found = []
        for number, flight in self.db.flights.read():
            status: dict[str, Any] = flight["dates"].get(date, {})
            leaves = flight["scheduled_departure_time_est"]
            if (
                status.get("status") == "available"
                and origin in (None, flight["origin"])
                and destination in (None, flight["destination"])
                and (after is None or leaves >= after)
            ):
                found.append(
                    {
                        **{"flight_number": number, "origin": flight["origin"]},
                        **{"destination": flight["destination"], "status": "available"},
                        "scheduled_departure_time_est": leaves,
                        "scheduled_arrival_time_est": flight["scheduled_arrival_time_est"],
                        "date": None,
                        "available_seats": deepcopy(status["available_seats"]),
                        "prices": status["prices"],
                    }
                )
        return found
