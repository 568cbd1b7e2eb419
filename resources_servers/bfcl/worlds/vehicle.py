"""A car: engine, doors, climate, brakes and navigation."""

from random import Random
from typing import Any, ClassVar

from .world import World

TANK, MILES_PER_GALLON, FULL_BRAKE = 50, 20.0, 1000.0

DISTANCES = {
    **{("83214", "74532"): 750.0, ("56108", "62947"): 320.0, ("71354", "83462"): 450.0},
    **{("47329", "52013"): 290.0, ("69238", "51479"): 630.0, ("94016", "83214"): 980.0},
    **{("94016", "94704"): 600.0, ("94704", "08540"): 2550.0, ("94016", "08540"): 1950.0},
    **{("62947", "47329"): 1053.0, ("94016", "62947"): 780.0, ("74532", "94016"): 880.0},
}
"""Between two postal codes, in kilometres."""

CODES = {
    **{"Rivermist": "83214", "Stonebrook": "74532", "Maplecrest": "56108", "Silverpine": "62947"},
    **{"Shadowridge": "71354", "Sunset Valley": "83462", "Oakendale": "47329"},
    **{"Willowbend": "52013", "Crescent Hollow": "69238", "Autumnville": "51479"},
    "San Francisco": "94016",
}

TIRES = tuple(f"{place}TirePressure" for place in ("frontLeft", "frontRight"))
TIRES += tuple(f"{place}TirePressure" for place in ("rearLeft", "rearRight"))

SHOWN = {
    "fuel": {"fuelLevel": "fuelLevel"},
    "battery": {"batteryVoltage": "batteryVoltage"},
    "doors": {"doorStatus": "doorStatus"},
    "climate": {
        **{"currentACTemperature": "acTemperature", "fanSpeed": "fanSpeed"},
        **{"climateMode": "acMode", "humidityLevel": "humidityLevel"},
    },
    "headlights": {"headlightStatus": "headLightStatus"},
    "parkingBrake": {
        **{"parkingBrakeStatus": "parkingBrakeStatus", "parkingBrakeForce": "_parkingBrakeForce"},
        "slopeAngle": "_slopeAngle",
    },
    "brakePedal": {
        **{"brakePedalStatus": "brakePedalStatus", "brakePedalForce": "_brakePedalForce"},
    },
    "engine": {"engineState": "engine_state"},
}
"""What displayCarStatus shows: option → name in the reply → attribute."""

Reply = dict[str, Any]


class VehicleControlAPI(World):
    _defaults: ClassVar[dict[str, Any]] = {
        "fuelLevel": 0.0,
        "batteryVoltage": 12.6,
        "doorStatus": {
            **{"driver": "unlocked", "passenger": "unlocked"},
            **{"rear_left": "unlocked", "rear_right": "unlocked"},
        },
        "acTemperature": 25.0,
        "fanSpeed": 50,
        "acMode": "auto",
        "humidityLevel": 50.0,
        "headLightStatus": "off",
        "parkingBrakeStatus": "released",
        "brakePedalStatus": "released",
        "distanceToNextVehicle": 50.0,
        "cruiseStatus": "inactive",
        "destination": "None",
        **dict(zip(TIRES, (32.0, 32.0, 30.0, 30.0), strict=True)),
    }

    def __init__(self, scenario: dict[str, Any], long: dict[str, Any] | None) -> None:
        super().__init__(scenario, long)
        self._random = Random(scenario.get("random_seed", 141053))
        self.engine_state = scenario.get("engineState", "stopped")
        self.remainingUnlockedDoors = 4 - [*self.doorStatus.values()].count("locked")
        self._parkingBrakeForce = scenario.get("parkingBrakeForce", 0.0)
        self._slopeAngle = scenario.get("slopeAngle", 0.0)
        self._brakePedalForce = scenario.get("brakePedalForce", 0.0)

    def startEngine(self, ignitionMode: str) -> Reply:
        if ignitionMode == "STOP":
            self.engine_state = "stopped"
        if self.remainingUnlockedDoors > 0:
            doors = [door for door, status in self.doorStatus.items() if status == "unlocked"]
            return {
                "error": "All doors must be locked before starting the engine. Here are the"
                f" unlocked doors: {', '.join(doors)}"
            }
        if self.brakePedalStatus != "pressed":
            return {"error": "Brake pedal needs to be pressed when starting the engine."}
        if self._brakePedalForce != FULL_BRAKE:
            return {"error": "Must press the brake fully before starting the engine."}
        if self.fuelLevel < 0:
            return {"error": "Fuel tank is empty."}
        if ignitionMode != "START":
            return {"error": "Invalid ignition mode."}
        self.engine_state = "running"
        return {
            "engineState": "running",
            "fuelLevel": self.fuelLevel,
            "batteryVoltage": self.batteryVoltage,
        }

    def fillFuelTank(self, fuelAmount: float) -> Reply:
        if fuelAmount < 0:
            return {"error": "Fuel amount cannot be negative."}
        if self.fuelLevel + fuelAmount > TANK:
            return {"error": "Cannot fill gas above the tank capacity."}
        if self.fuelLevel + fuelAmount < 0:
            return {"error": "Fuel tank is empty. Min fuel level is 0 gallons."}
        self.fuelLevel += fuelAmount
        return {"fuelLevel": self.fuelLevel}

    def lockDoors(self, unlock: bool, door: list[str]) -> Reply:
        wanted, change = ("unlocked", 1) if unlock else ("locked", -1)
        for each in door:
            if self.doorStatus[each] != wanted:
                self.doorStatus[each] = wanted
                self.remainingUnlockedDoors += change
        return {"lockStatus": wanted, "remainingUnlockedDoors": self.remainingUnlockedDoors}

    def adjustClimateControl(
        self,
        temperature: float,
        unit: str = "celsius",
        fanSpeed: int = 50,
        mode: str = "auto",
    ) -> Reply:
        if not (0 <= fanSpeed <= 100):
            return {"error": "Fan speed must be between 0 and 100."}
        is_celsius = unit != "fahrenheit"
        self.acTemperature = temperature if is_celsius else (temperature - 32) * 5 / 9
        self.fanSpeed, self.acMode = fanSpeed, mode
        return {
            **{"currentACTemperature": temperature, "climateMode": mode},
            "humidityLevel": self.humidityLevel,
        }

    def get_outside_temperature_from_google(self) -> Reply:
        more = self._long["long_weather"] if self._long is not None else {}
        return {**more, "outsideTemperature": self._random.uniform(-10.0, 40.0)}

    def get_outside_temperature_from_weather_com(self) -> Reply:
        return {"error": 404}

    def setHeadlights(self, mode: str) -> Reply:
        if mode not in ("on", "off", "auto"):
            return {"error": "Invalid headlight mode."}
        self.headLightStatus = "on" if mode == "on" else "off"
        return {"headlightStatus": self.headLightStatus}

    def displayCarStatus(self, option: str) -> Reply:
        found = {"metadata": self._long["car_status_metadata"]} if self._long is not None else {}
        if option not in SHOWN:
            return {**found, "error": "Invalid option"}
        return found | {name: getattr(self, own) for name, own in SHOWN[option].items()}

    def activateParkingBrake(self, mode: str) -> Reply:
        if mode not in ("engage", "release"):
            return {"error": "Invalid mode"}
        is_on = mode == "engage"
        self.parkingBrakeStatus = "engaged" if is_on else "released"
        self._parkingBrakeForce, self._slopeAngle = 500.0 if is_on else 0.0, 10.0
        text = self._long and {"parkingBrakeInstruction": self._long["parking_brake_instruction"]}
        return {
            **(text or {}),
            "parkingBrakeStatus": self.parkingBrakeStatus,
            "_parkingBrakeForce": self._parkingBrakeForce,
            "_slopeAngle": self._slopeAngle,
        }

    def pressBrakePedal(self, pedalPosition: float) -> Reply:
        if not (0 <= pedalPosition <= 1):
            return {"error": "Pedal position must be between 0 and 1."}
        if pedalPosition == 0:
            return self.releaseBrakePedal()
        self.brakePedalStatus, self._brakePedalForce = "pressed", pedalPosition * 1000
        return {"brakePedalStatus": "pressed", "brakePedalForce": float(self._brakePedalForce)}

    def releaseBrakePedal(self) -> Reply:
        self.brakePedalStatus, self._brakePedalForce = "released", 0.0
        return {"brakePedalStatus": "released", "brakePedalForce": 0.0}

    def setCruiseControl(self, speed: float, activate: bool, distanceToNextVehicle: float) -> Reply:
        distance, speed = float(distanceToNextVehicle), float(speed)
        if self.engine_state == "stopped":
            return {"error": "Start the engine before activating the cruise control."}
        self.distanceToNextVehicle = distance
        if activate and (speed < 0 or speed > 120 or speed % 5 != 0):
            return {"error": "Invalid speed"}
        self.cruiseStatus = "active" if activate else "inactive"
        return {
            **{"cruiseStatus": self.cruiseStatus, "currentSpeed": speed},
            "distanceToNextVehicle": distance,
        }

    def get_current_speed(self) -> Reply:
        return {"currentSpeed": self._random.uniform(0.0, 120.0)}

    def display_log(self, messages: list[str]) -> Reply:
        return {"log": messages}

    def estimate_drive_feasibility_by_mileage(self, distance: float) -> Reply:
        return {"canDrive": not self.fuelLevel * MILES_PER_GALLON < distance}

    def liter_to_gallon(self, liter: float) -> Reply:
        return {"gallon": liter * 0.264172}

    def gallon_to_liter(self, gallon: float) -> Reply:
        return {"liter": gallon * 3.78541}

    def estimate_distance(self, cityA: str, cityB: str) -> Reply:
        distance = DISTANCES.get((cityA, cityB), DISTANCES.get((cityB, cityA)))
        found: Reply = {"distance": distance}
        if distance is None:
            found = {"error": "distance not found in database."}
        if self._long is not None:
            found["intermediaryCities"] = self._long["intermediary_cities"]
        return found

    def get_zipcode_based_on_city(self, city: str) -> Reply:
        return {"zipcode": CODES.get(city, "00000")}

    def set_navigation(self, destination: str) -> Reply:
        self.destination = destination
        return {"status": "Navigating to " + destination}

    def check_tire_pressure(self) -> Reply:
        found = {name: getattr(self, name) for name in TIRES}
        return {
            **found,
            "healthy_tire_pressure": 30 <= sum(found.values()) / 4 <= 35,
            "car_info": self._long["car_status_metadata"] if self._long is not None else {},
        }

    def find_nearest_tire_shop(self) -> Reply:
        return {"shopLocation": "456 Oakwood Avenue, Rivermist, 83214"}
